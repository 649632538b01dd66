"""Made models with the shapes that files in the wild have: batches, symbols, and neither."""

from __future__ import annotations

import numpy as np

from tests.made_models import Made

INT64 = np.int64

SHAPED = (
    Made(
        "fixed-batch",
        "g (float[4,8] x) => (float[4,3] y) { h = MatMul(x, w) y = Relu(h) }",
        {"w": (8, 3)},
    ),
    Made(
        "fixed-batch-baked",
        "g (float[4,2,8] x) => (float[4,6] y) { h = MatMul(x, w) y = Reshape(h, s) }",
        {"w": (8, 3), "s": np.array([4, 6], INT64)},
    ),
    Made("fixed-batch-mixing", "g (float[3,5] x) => (float[3,5] y) { y = Softmax<axis=0>(x) }"),
    Made(
        "open-batch",
        "g (float[N,8] x) => (float[N,3] y) { h = MatMul(x, w) y = Tanh(h) }",
        {"w": (8, 3)},
    ),
    Made(
        "no-batch-axis",
        "g (float[16] x) => (float[5] y) { y = MatMul(w, x) }",
        {"w": (5, 16)},
    ),
    Made("scalar", "g (float x) => (float y) { y = Exp(x) }"),
    Made(
        "scalar-output",
        "g (float[N,8] x) => (float[N,8] y, float loss) { y = Abs(x) loss = ReduceMean<keepdims=0>(y) }",
    ),
    Made(
        "scalar-beside-rows",
        "g (float[N,8] x, int64 rate) => (float[N,8] y) { r = Cast<to=1>(rate) y = Mul(x, r) }",
        values={"rate": (1, 2, 3)},
    ),
    Made(
        "empty-output",
        "g (float[N,4] x) => (float[N,0] y, float[N,4] z) { y = Slice(x, s, s, a) z = Neg(x) }",
        {"s": np.array([2], INT64), "a": np.array([1], INT64)},
    ),
    Made(
        "output-without-rows",
        "g (float[N,4] x) => (float[4,4] y) { t = Transpose<perm=[1,0]>(x) y = MatMul(t, x) }",
    ),
    Made(
        "output-of-layers-first",
        """g (float[N,4] x) => (float[2,N,4] y) {
            a = Unsqueeze(x, zero) b = Mul(a, a) y = Concat<axis=0>(a, b)
        }""",
        {"zero": np.array([0], INT64)},
    ),
    Made(
        "more-rows-out",
        "g (float[1,3,4] x) => (float[12,1] y) { y = Reshape(x, s) }",
        {"s": np.array([12, 1], INT64)},
    ),
    Made(
        "time-first",
        """g (float[10,N,6] x) => (float[10,1,N,5] y, float[1,N,5] last) {
            y, last = GRU<hidden_size=5>(x, w, r)
        }""",
        {"w": (1, 15, 6), "r": (1, 15, 5)},
    ),
    Made(
        "time-first-open",
        """g (float[T,N,6] x) => (float[T,1,N,5] y, float[1,N,5] last) {
            y, last = GRU<hidden_size=5>(x, w, r)
        }""",
        {"w": (1, 15, 6), "r": (1, 15, 5)},
    ),
    Made(
        "time-first-with-states",
        """g (float[T,N,6] x, float[2,N,5] h0, float[2,N,5] c0)
            => (float[T,2,N,5] y, float[2,N,5] hN, float[2,N,5] cN) {
            y, hN, cN = LSTM<hidden_size=5, direction="bidirectional">(x, w, r, b, , h0, c0)
        }""",
        {"w": (2, 20, 6), "r": (2, 20, 5), "b": (2, 40)},
    ),
    Made(
        "time-first-fixed",
        """g (float[16,1,6] x, float[1,1,5] h0) => (float[16,1,1,5] y, float[1,1,5] hN) {
            y, hN = RNN<hidden_size=5>(x, w, r, , , h0)
        }""",
        {"w": (1, 5, 6), "r": (1, 5, 5)},
    ),
    Made(
        "time-first-layers",
        """g (float[T,N,6] x) => (float[T,N,3] y) {
            a = GRU<hidden_size=5>(x, w0, r0) b = Squeeze(a, one) c = LSTM<hidden_size=4>(b, w1, r1)
            d = Squeeze(c, one) e = MatMul(d, head) y = Softmax<axis=-1>(e)
        }""",
        {
            "w0": (1, 15, 6),
            "r0": (1, 15, 5),
            "w1": (1, 16, 5),
            "r1": (1, 16, 4),
            "head": (4, 3),
            "one": np.array([1], INT64),
        },
    ),
    Made(
        "channels-by-time",
        """g (int64[T,N] ids) => (float[T,N,8] y, float[N,8] last) {
            e = Gather(table, ids) a, hN = GRU<hidden_size=8>(e, w, r) y = Squeeze(a, one)
            last = Squeeze(hN, zero)
        }""",
        {
            "table": (50, 6),
            "w": (1, 24, 6),
            "r": (1, 24, 8),
            "one": np.array([1], INT64),
            "zero": np.array([0], INT64),
        },
    ),
    Made(
        "rate-decides",
        """g (float[L] x, int64 rate) => (float[4] y) {
            e = Equal(rate, known) u = Reshape(x, flat)
            y = If(e) <then_branch = many () => (float[4] a) {
                           h = Conv<strides=[16]>(u, w16) a = Reshape(h, four) },
                       else_branch = few () => (float[4] b) {
                           k = Conv<strides=[8]>(u, w8) b = Reshape(k, four) }>
        }""",
        {
            "w8": (4, 1, 8),
            "w16": (4, 1, 16),
            "known": np.array(16000, INT64),
            "flat": np.array([1, 1, -1], INT64),
            "four": np.array([4], INT64),
        },
        values={"rate": (8000, 16000)},
        dims={"L": (8, 12, 16, 24)},
    ),
    Made(
        "recurrent-state",
        """g (float[N,6] x, float[2,N,5] state) => (float[N,5] y, float[2,N,5] stateN) {
            m = MatMul(x, w) a = ReduceSum<keepdims=0>(state, zero) s = Add(m, a) y = Tanh(s)
            u = Unsqueeze(y, zero) stateN = Concat<axis=0>(u, u)
        }""",
        {"w": (6, 5), "zero": np.array([0], INT64)},
    ),
    Made(
        "sequence-pooled",
        """g (int64[N,S] ids) => (float[N,8] y) {
            e = Gather(table, ids) h = MatMul(e, w) t = Tanh(h) y = ReduceMean<axes=[1], keepdims=0>(t)
        }""",
        {"table": (100, 16), "w": (16, 8)},
    ),
    Made(
        "sequence-tokens",
        """g (int64[N,S] ids, int64[N,S] mask) => (float[N,S,8] y) {
            e = Gather(table, ids) m = Cast<to=1>(mask) u = Unsqueeze(m, last) f = Mul(e, u)
            q = MatMul(f, w) k = Transpose<perm=[0,2,1]>(q) s = MatMul(q, k) p = Softmax<axis=-1>(s)
            y = MatMul(p, q)
        }""",
        {"table": (50, 16), "w": (16, 8), "last": np.array([2], INT64)},
        values={"mask": (0, 1)},
    ),
    Made(
        "sequence-pairs",
        """g (float[N,S,8] left, float[N,R,8] right) => (float[N,S,R] y) {
            t = Transpose<perm=[0,2,1]>(right) m = MatMul(left, t) y = Sigmoid(m)
        }""",
    ),
    Made(
        "image-size",
        """g (float[N,3,H,W] x) => (float[N,4,H,W] y) {
            h = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w) y = Relu(h)
        }""",
        {"w": (4, 3, 3, 3)},
    ),
    Made(
        "image-size-pooled",
        """g (float[1,3,H,W] x) => (float[1,4] y) {
            h = Conv<kernel_shape=[3,3], strides=[2,2]>(x, w) p = GlobalAveragePool(h) y = Flatten(p)
        }""",
        {"w": (4, 3, 3, 3)},
    ),
    Made(
        "samples",
        """g (float[N,1,L] x) => (float[N,4,M] y) {
            h = Conv<kernel_shape=[16], strides=[8]>(x, w) y = Abs(h)
        }""",
        {"w": (4, 1, 16)},
    ),
    Made(
        "past-and-new",
        """g (float[N,seq,8] x, float[N,past,8] kept, float[N,total] mask)
          => (float[N,total,seq] y, float[N,total,8] keys) {
            keys = Concat<axis=1>(kept, x) t = Transpose<perm=[0,2,1]>(x) s = MatMul(keys, t)
            m = Unsqueeze(mask, last) y = Mul(s, m)
        }""",
        {"last": np.array([2], INT64)},
        dims={"seq": (4, 8, 12), "past": (4, 8, 12), "total": (16,)},
    ),
    Made(
        "class-and-patches",
        """g (float[N,3,H,W] x) => (float[N,5,M] y) {
            c = Conv<kernel_shape=[4,4], strides=[4,4]>(x, w) f = Reshape(c, flat)
            t = GlobalAveragePool(f) y = Concat<axis=2>(t, f)
        }""",
        {"w": (5, 3, 4, 4), "flat": np.array([0, 5, -1], INT64)},
    ),
    Made("one-open-axis", "g (float[L] x) => (float[L] y) { y = CumSum(x, a) }", {"a": np.array(0, INT64)}),
    Made(
        "external-data",
        "g (float[N,64] x) => (float[N,64] y) { h = MatMul(x, w) y = Relu(h) }",
        {"w": (64, 64)},
        external=True,
    ),
)
