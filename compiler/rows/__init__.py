"""The batch axis: opened where an exporter fixed it, found behind another axis, proved independent."""
