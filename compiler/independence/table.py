"""Each operator's rule, by its domain. An operator that is missing here proves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mainspring.compiler.independence import elementwise, layers, moves, products
from mainspring.compiler.independence.step import NotProven, Rule, Step, Value

_ONE_SCALE = "has one scale for all rows of a batch"


def _mixes(why: str) -> Rule:
    def rule(_step: Step) -> list[Value]:
        raise NotProven(why)

    return rule


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_STANDARD: dict[str, Rule] = {
    **_all(
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu "
        "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu "
        "Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu",
        elementwise.first_input,
    ),
    **_all(
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual "
        "Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor",
        elementwise.aligned,
    ),
    **_all("QuantizeLinear DequantizeLinear", elementwise.scaled),
    "StringSplit": products.string_split,
    "TfIdfVectorizer": products.tf_idf,
    "StringConcat": elementwise.aligned,
    "RegexFullMatch": elementwise.first_input,
    "StringNormalizer": elementwise.texts,
    "Dropout": elementwise.dropout,
    "CastLike": elementwise.first_input,
    **_all("Softmax LogSoftmax Hardmax", elementwise.softmax),
    **_all("LayerNormalization RMSNormalization SimplifiedLayerNormalization", elementwise.from_axis),
    "LpNormalization": elementwise.along(-1, "normalises"),
    "CumSum": elementwise.along(0, "sums", 1),
    "CumProd": elementwise.along(0, "multiplies", 1),
    **_all(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
        elementwise.reduction,
    ),
    **_all("ArgMax ArgMin", elementwise.arg_reduction),
    "TopK": elementwise.top_k,
    "OneHot": elementwise.one_hot,
    "Trilu": elementwise.trilu,
    "MeanVarianceNormalization": elementwise.mean_variance,
    "BatchNormalization": elementwise.batch_normalization,
    "ReverseSequence": elementwise.reverse_sequence,
    "Reshape": moves.reshape,
    "Flatten": moves.flatten,
    "Transpose": moves.transpose,
    "Squeeze": moves.squeeze,
    "Unsqueeze": moves.unsqueeze,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "Concat": moves.concat,
    "Split": moves.split,
    "Slice": moves.slice_,
    "Pad": moves.pad,
    "Gather": moves.gather,
    "GatherElements": moves.gather_elements,
    "GatherND": moves.gather_nd,
    "ScatterElements": moves.scatter_elements,
    "ScatterND": moves.scatter_nd,
    "MatMul": products.matmul_at(0, 1),
    "MatMulInteger": products.matmul_at(0, 1),
    "QLinearMatMul": products.matmul_at(0, 3),
    "Gemm": products.gemm,
    "Einsum": products.einsum,
    "Attention": products.attention((0, 1, 2), masks=(6,), biases=(3,)),
    **_all("LSTM GRU RNN", products.recurrent),
    **_all(
        "Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool "
        "GlobalMaxPool QLinearConv SpaceToDepth",
        layers.layer(),
    ),
    **_all("AveragePool LpPool", layers.pool),
    "MaxPool": layers.max_pool,
    "GridSample": layers.layer(1),
    "DeformConv": layers.layer(2, 4),
    **_all("GroupNormalization InstanceNormalization LRN", layers.same_shape),
    **_all("Resize Upsample", layers.resize),
    "DynamicQuantizeLinear": _mixes(_ONE_SCALE),
    "NonZero": _mixes("lists places of the whole batch"),
    "Unique": _mixes("compares elements of the whole batch"),
    "Compress": _mixes("leaves out elements of the whole batch"),
    "NonMaxSuppression": _mixes("lists boxes of the whole batch"),
    "Range": _mixes("numbers the rows"),
}

_MICROSOFT: dict[str, Rule] = {
    **_all("BiasGelu FastGelu", elementwise.aligned),
    **_all("Gelu QuickGelu QLinearLeakyRelu QLinearSigmoid", elementwise.first_input),
    **_all("QLinearAdd QLinearMul", elementwise.operands(0, 3)),
    "Tokenizer": products.tokenizer,
    "QLinearWhere": elementwise.operands(0, 1, 4),
    **_all("QuantizeLinear DequantizeLinear", elementwise.scaled),
    "QLinearSoftmax": elementwise.softmax,
    "QLinearConcat": layers.concat_pairs,
    **_all("FusedConv NhwcFusedConv", layers.fused),
    **_all("QLinearConv QLinearAveragePool QLinearGlobalAveragePool NhwcMaxPool", layers.layer()),
    "FusedGemm": products.gemm,
    **_all("FusedMatMul TransposeMatMul", products.fused_matmul),
    "MatMulIntegerToFloat": products.matmul_at(0, 1),
    "QGemm": products.quantised_gemm,
    "MatMulNBits": products.packed_product,
    "Attention": products.attention((0,), masks=(3,), biases=(5,)),
    "MultiHeadAttention": products.attention((0, 1, 2), masks=(4,), biases=(5,)),
    "EmbedLayerNormalization": layers.embedding,
    "SkipLayerNormalization": layers.added_norm,
    "SkipSimplifiedLayerNormalization": layers.added_norm,
    **_all("DynamicQuantizeLSTM DynamicQuantizeMatMul QAttention", _mixes(_ONE_SCALE)),
}

_BLOCKED: dict[str, Rule] = {
    **_all("ReorderInput ReorderOutput", layers.reorder),
    "Conv": layers.fused,
    **_all("AveragePool GlobalAveragePool GlobalMaxPool MaxPool", layers.blocked_pool),
    "Upsample": layers.blocked_upsample,
}
"""ONNX Runtime's own, of channels in blocks."""

_ESTIMATORS: dict[str, Rule] = {
    **_all("TreeEnsembleClassifier LinearClassifier SVMClassifier", layers.estimator(1, 2)),
    **_all("TreeEnsembleRegressor TreeEnsemble LinearRegressor SVMRegressor", layers.estimator(2)),
    **_all("Binarizer Imputer Normalizer Scaler", layers.table_row),
    **_all("CategoryMapper LabelEncoder", elementwise.first_input),
    "ArrayFeatureExtractor": layers.columns,
    "FeatureVectorizer": layers.features,
    "OneHotEncoder": layers.one_hot_encoder,
}

_TABLE: Mapping[str, Mapping[str, Rule]] = {
    "": _STANDARD,
    "ai.onnx": _STANDARD,
    "ai.onnx.ml": _ESTIMATORS,
    "com.microsoft": _MICROSOFT,
    "com.microsoft.nchwc": _BLOCKED,
}


def rule_of(domain: str, operator: str) -> Rule | None:
    """Return an operator's rule; None if it has none."""
    return _TABLE.get(domain, {}).get(operator)


def known_operators(domain: str) -> Iterable[str]:
    """Return the operators of a domain that have a rule, sorted."""
    return sorted(_TABLE.get(domain, {}))
