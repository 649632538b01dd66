"""InferLine (SoCC '20): its pipelines, baselines and figures."""
