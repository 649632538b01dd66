"""Made models with the operators and types that files in the wild have: control flow, data-dependent shapes,
narrow numbers, strings, other domains, old and new opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.made_models import Made

INT64 = np.int64
_LABELS = 'keys_strings=["no","yes"], values_int64s=[0,1], default_int64=7'
_NAMES = 'keys_int64s=[0,1,2], values_strings=["cat","dog","bird"], default_string="none"'


def _int4(shape: tuple[int, ...]) -> Any:
    values = np.random.default_rng(4).integers(-8, 8, shape)
    return helper.make_tensor("w", TensorProto.INT4, shape, values.reshape(-1).tolist())


def _bytes(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(5).integers(0, 256, shape).astype(np.uint8)


def _classifier(output: str, labels: str, kind: str) -> str:
    return f"""g (float[N,4] x) => ({kind}[N] label, {output} p) {{
        label, raw = ai.onnx.ml.LinearClassifier<coefficients=[0.1,0.2,-0.3,0.4,-0.1,0.3,0.2,-0.5],
            intercepts=[0.1,-0.1], {labels}, post_transform="SOFTMAX">(x)
        p = ai.onnx.ml.ZipMap<{labels}>(raw)
    }}"""


def _loop(shape: str, further_input: str = "") -> str:
    return f"""g (float[{shape}] x{further_input}) => (float[{shape}] y) {{
        y = Loop(steps, go, x) <body = b (int64 i, bool c, float[{shape}] h) => (bool o, float[{shape}] r) {{
            o = Identity(c) m = MatMul(h, w) r = Tanh(m) }}>
    }}"""


VALUED = (
    Made(
        "if-of-values",
        """g (float[N,8] x) => (float[N,8] y) {
            s = ReduceSum<keepdims=0>(x) c = Greater(s, zero)
            y = If(c) <then_branch = t () => (float[N,8] a) { a = MatMul(x, w) },
                       else_branch = e () => (float[N,8] b) { b = Neg(x) }>
        }""",
        {"w": (8, 8), "zero": np.array(0, np.float32)},
    ),
    Made(
        "if-of-a-flag",
        """g (float[2,8] x, bool flag) => (float[2,8] y) {
            y = If(flag) <then_branch = t () => (float[2,8] a) { a = MatMul(x, w) },
                          else_branch = e () => (float[2,8] b) { b = Neg(x) }>
        }""",
        {"w": (8, 8)},
    ),
    Made(
        "if-of-shapes",
        """g (float[N,S] x) => (float[N,S] y) {
            d = Shape<start=1, end=2>(x) q = Squeeze(d) c = Greater(q, limit)
            y = If(c) <then_branch = t () => (float[N,S] a) { a = Abs(x) },
                       else_branch = e () => (float[N,S] b) { b = Neg(x) }>
        }""",
        {"limit": np.array(16, INT64)},
    ),
    Made(
        "loop-of-a-value",
        _loop("8,8", ", int64 steps"),
        {"w": (8, 8), "go": np.array(True)},
        values={"steps": (1, 2, 5, 50)},
    ),
    Made(
        "loop-fixed",
        _loop("N,8"),
        {"w": (8, 8), "go": np.array(True), "steps": np.array(3, INT64)},
    ),
    Made(
        "loop-erratic",
        _loop("64,64", ", int64 steps"),
        {"w": (64, 64), "go": np.array(True)},
        values={"steps": (1, 1, 1, 400)},
    ),
    Made(
        "scan",
        """g (float[6,4] x) => (float[4] last, float[6,4] all) {
            last, all = Scan<num_scan_inputs=1,
                body = b (float[4] s, float[4] e) => (float[4] n, float[4] o) {
                n = Add(s, e) o = Tanh(n) }>(start, x)
        }""",
        {"start": np.zeros(4, np.float32)},
    ),
    Made("nonzero", "g (float[4,6] x) => (int64[2,K] y) { r = Relu(x) y = NonZero(r) }"),
    Made(
        "non-max-suppression",
        """g (float[1,20,4] boxes, float[1,2,20] scores) => (int64[K,3] y) {
            b = Abs(boxes) y = NonMaxSuppression(b, scores, most, overlap, score)
        }""",
        {
            "most": np.array([5], INT64),
            "overlap": np.array([0.5], np.float32),
            "score": np.array([0.1], np.float32),
        },
    ),
    Made("unique", "g (int64[12] x) => (int64[U] y) { y = Unique(x) }", values={"x": (1, 2, 3, 4, 5)}),
    Made(
        "top-k-of-a-value",
        "g (float[N,20] x, int64[1] k) => (float[N,K] v, int64[N,K] i) { v, i = TopK(x, k) }",
        values={"k": (1, 3, 20)},
    ),
    Made(
        "zipmap-integers",
        _classifier("seq(map(int64, float))", "classlabels_ints=[3,8]", "int64").replace(
            "ZipMap<classlabels_ints", "ZipMap<classlabels_int64s"
        ),
        domains=("ai.onnx.ml:3",),
    ),
    Made(
        "zipmap-strings",
        _classifier("seq(map(string, float))", 'classlabels_strings=["no","yes"]', "string"),
        domains=("ai.onnx.ml:3",),
    ),
    Made(
        "sequence-of-tensors",
        "g (float[4,6] x) => (seq(float[4,2]) y) { y = SplitToSequence<axis=1>(x, n) }",
        {"n": np.array(2, INT64)},
    ),
    Made(
        "every-number",
        """g (uint8[N,3] a, int8[N,3] b, uint16[N,3] c, int16[N,3] d, uint32[N,3] e, int32[N,3] f,
             uint64[N,3] h, int64[N,3] i, bool[N,3] j, double[N,3] k, float16[N,3] l)
          => (uint8[N,3] ya, int8[N,3] yb, uint16[N,3] yc, int16[N,3] yd, uint32[N,3] ye, int32[N,3] yf,
              uint64[N,3] yh, int64[N,3] yi, bool[N,3] yj, double[N,3] yk, float16[N,3] yl) {
            ya = Concat<axis=1>(a) yb = Concat<axis=1>(b) yc = Concat<axis=1>(c) yd = Concat<axis=1>(d)
            ye = Concat<axis=1>(e) yf = Concat<axis=1>(f) yh = Concat<axis=1>(h) yi = Concat<axis=1>(i)
            yj = Not(j) yk = Neg(k) yl = Neg(l)
        }""",
    ),
    Made(
        "float16",
        "g (float16[N,16] x) => (float16[N,8] y) { h = MatMul(x, w) y = Relu(h) }",
        {"w": (np.random.default_rng(6).standard_normal((16, 8)) * 0.2).astype(np.float16)},
    ),
    Made(
        "bfloat16",
        """g (bfloat16[N,16] x) => (bfloat16[N,8] y) {
            f = Cast<to=1>(x) h = MatMul(f, w) y = Cast<to=16>(h)
        }""",
        {"w": (16, 8)},
    ),
    Made(
        "weights-of-4-bits",
        """g (float[N,32] x) => (float[N,16] y) {
            d = DequantizeLinear<axis=0, block_size=16>(w, s) y = MatMul(x, d)
        }""",
        {"w": _int4((32, 16)), "s": np.full((2, 16), 0.05, np.float32)},
        opset=21,
        ir=10,
    ),
    Made(
        "matmul-n-bits",
        """g (float[N,32] x) => (float[N,16] y) {
            y = com.microsoft.MatMulNBits<K=32, N=16, bits=4, block_size=16>(x, w, s)
        }""",
        {"w": _bytes((16, 2, 8)), "s": np.full(32, 0.05, np.float32)},
        domains=("com.microsoft:1",),
    ),
    Made(
        "weights-of-8-bits",
        """g (float[N,16] x) => (float[N,8] y) {
            q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx) e = DequantizeLinear(w, sw, zw)
            y = MatMul(d, e)
        }""",
        {
            "w": _bytes((16, 8)).astype(np.int8),
            "sx": np.array(0.02, np.float32),
            "zx": np.array(128, np.uint8),
            "sw": np.array(0.01, np.float32),
            "zw": np.array(0, np.int8),
        },
    ),
    Made(
        "quantised-while-it-runs",
        """g (float[N,16] x) => (float[N,8] y) {
            q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) f = Cast<to=1>(m) y = Mul(f, s)
        }""",
        {"w": _bytes((16, 8))},
    ),
    Made(
        "opset-7",
        """g (float[N,3,8,8] x) => (float[N,5] y) {
            n = BatchNormalization(x, scale, bias, mean, variance)
            c = Conv<kernel_shape=[3,3]>(n, w) r = Relu(c)
            p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, v, b)
        }""",
        {
            "scale": np.ones(3, np.float32),
            "bias": np.zeros(3, np.float32),
            "mean": np.zeros(3, np.float32),
            "variance": np.ones(3, np.float32),
            "w": (4, 3, 3, 3),
            "v": (4, 5),
            "b": (5,),
        },
        opset=7,
        ir=3,
    ),
    Made(
        "newest-opset",
        "g (float[N,8] x) => (float[N,8] y) { n = RMSNormalization(x, w) y = Swish(n) }",
        {"w": (8,)},
        opset=24,
        ir=11,
    ),
    Made(
        "own-function",
        """g (float[N,8] x) => (float[N,8] y) { y = own.Twice(x) }
        <domain: "own", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }""",
        domains=("own:1",),
    ),
    Made(
        "com-microsoft",
        """g (float[N,8] x) => (float[N,8] y) {
            n = com.microsoft.SkipLayerNormalization(x3, x3, gamma, beta)
            s = Squeeze(n, one) y = com.microsoft.FastGelu(s)
        }""".replace("n = com", "x3 = Unsqueeze(x, one) n = com"),
        {"gamma": np.ones(8, np.float32), "beta": (8,), "one": np.array([1], INT64)},
        domains=("com.microsoft:1",),
    ),
    Made(
        "com-microsoft-attention",
        """g (float[N,6,8] x) => (float[N,6,8] y) {
            y = com.microsoft.Attention<num_heads=2>(x, w, b)
        }""",
        {"w": (8, 24), "b": (24,)},
        domains=("com.microsoft:1",),
    ),
    Made(
        # Zero times what is drawn, so that there is an answer to compare with.
        "random-numbers",
        """g (float[N,L] x) => (float[N,L] y) {
            n = RandomNormalLike(x) s = Mul(n, zero) y = Add(s, x)
        }""",
        {"zero": np.float32(0)},
    ),
    Made(
        "strings-in",
        f"g (string[N,2] x) => (int64[N,2] y) {{ y = ai.onnx.ml.LabelEncoder<{_LABELS}>(x) }}",
        domains=("ai.onnx.ml:2",),
    ),
    Made(
        "strings-out",
        f"""g (float[N,3] x) => (string[N] y) {{
            i = ArgMax<axis=1, keepdims=0>(x) y = ai.onnx.ml.LabelEncoder<{_NAMES}>(i)
        }}""",
        domains=("ai.onnx.ml:2",),
    ),
    Made(
        "strings-through",
        "g (string[N] x, string[N] z) => (string[N] y) { y = StringConcat(x, z) }",
        opset=20,
        ir=9,
    ),
)
