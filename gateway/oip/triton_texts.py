"""Triton's texts for requests that can't be served, for `compatibility = "triton"`. Pure.

Programs that were written for Triton, its own tests among them, check how an error's text begins. So there a
text begins with Triton's sentence, and what this server has to say beside it follows; the reason code stays
in its own field. The sentences are those of Triton's ``infer_request.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.oip.datatypes import REQUEST, Unfit
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec

_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended "
    "to each input shape."
)
_BEGINNINGS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.UNKNOWN_MODEL: "Request for unknown model",
        Reason.MODEL_REMOVED: "Request for unknown model",
        Reason.MODEL_NOT_READY: "Request for unknown model",
        Reason.DEADLINE_UNREACHABLE: "Request timeout expired",
        Reason.DEADLINE_PASSED: "Request timeout expired",
        Reason.TIMED_OUT: "Request timeout expired",
        Reason.OVERLOADED: "Exceeds maximum queue size",
        Reason.SHUTTING_DOWN: "Server is stopping, scheduler for model has stopped accepting new inference "
        "requests",
    }
)
"""Beginning of the texts of a reason, where Triton has one sentence for it."""
SIGNATURE_REASONS = (Reason.BAD_INPUT, Reason.BAD_OUTPUT, Reason.TOO_MANY_ROWS)
"""Reasons that a model's signature, which is therefore known, gives to refuse a request."""


def begun(reason: Reason, detail: str) -> str:
    """Return a refusal's text, behind Triton's sentence if it has one for the reason."""
    beginning = _BEGINNINGS.get(reason, "")
    return detail if detail.startswith(beginning) else f"{beginning}: {detail}"


def worded(error: BadRequest, *, triton: bool) -> str:
    """Return an error's text: Triton's where that is asked for and there is one."""
    said = error.triton if triton and isinstance(error, Unfit) else ""
    return said or error.detail


def of_request(error: BadRequest, request: InferRequest, sizes: Sequence[int], signature: Signature) -> str:
    """Return the text for a request that a model's signature refuses, for one of `SIGNATURE_REASONS`.

    ``sizes`` are the bytes of its inputs. The request is checked in Triton's order; what Triton would have
    taken is said in this server's words.
    """
    for name in request.outputs or ():
        if name not in signature.outputs:
            return f"unexpected inference output '{name[:200]}' for model '{request.model}'"
    if any(size < 0 for header in request.inputs for size in header.shape):
        return error.detail
    said = _names(request, signature) or _rows(request, signature) or _shapes(request, sizes, signature)
    return f"{REQUEST}{said}" if said else error.detail


def _names(request: InferRequest, signature: Signature) -> str:
    given, model = [each.name for each in request.inputs], request.model
    unknown = next((name for name in given if name not in signature.inputs), None)
    missing = [name for name in signature.inputs if name not in {*given, *signature.defaults}]
    most = len(signature.inputs)
    least = most - len(signature.defaults)
    if not least <= len(given) <= most:
        expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
        return (
            f"expected {expected} but got {len(given)} inputs for model '{model}'. "
            f"Got input(s) {_quoted(given)}, but missing required input(s) {_quoted(missing)}. Please "
            "provide all required input(s)."
        )
    return "" if unknown is None else f"unexpected inference input '{unknown[:200]}' for model '{model}'"


def _quoted(names: Sequence[str]) -> str:
    return f"[{','.join([repr(name[:200]) for name in names])}]"


def _rows(request: InferRequest, signature: Signature) -> str:
    """Return what is wrong with the number of rows, of a model that has them in front."""
    if signature.whole or not signature.spec.rows_in_front:
        return ""
    rows = None
    for header in request.inputs:
        if not header.shape:
            return (
                f"input '{header.name}' has no shape but model requires batch dimension for '{request.model}'"
            )
        if rows is not None and header.shape[0] != rows:
            return f"input '{header.name}' batch size does not match other inputs for '{request.model}'"
        rows = header.shape[0]
    if rows is not None and rows > signature.most_rows:
        return f"inference request batch-size must be <= {signature.most_rows} for '{request.model}'"
    return ""


def _shapes(request: InferRequest, sizes: Sequence[int], signature: Signature) -> str:
    for header, size in zip(request.inputs, sizes, strict=False):
        tensor = signature.spec.inputs[signature.inputs[header.name]]
        expected = _expected(tensor, signature)
        fits = len(expected) == len(header.shape) and all(
            want in (-1, got) for want, got in zip(expected, header.shape, strict=True)
        )
        if not fits:
            note = "" if signature.whole else f". {_NOTE}"
            return (
                f"unexpected shape for input '{header.name}' for model '{request.model}'. Expected "
                f"{_dims(expected)}, got {_dims(header.shape[:64])}{note}"
            )
        rows = 1 if signature.whole or not header.shape else header.shape[tensor.rows_axis]
        wanted = rows * signature.input_row_bytes[signature.inputs[header.name]]
        if not tensor.open and size != wanted:
            return (
                f"input byte size mismatch for input '{header.name}' for model '{request.model}'. Expected "
                f"{wanted}, got {size}"
            )
    return ""


def _expected(tensor: TensorSpec, signature: Signature) -> tuple[int, ...]:
    """Return a tensor's shape as clients have it, with -1 where any size may be."""
    opened = {dim.axis for dim in tensor.open}
    dims = tuple([-1 if axis in opened else size for axis, size in enumerate(tensor.shape)])
    return dims if signature.whole else (*dims[: tensor.rows_axis], -1, *dims[tensor.rows_axis :])


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def in_words(error: BadRequest, request: InferRequest, sizes: Sequence[int], catalog: Catalog) -> str:
    """Return what is wrong with a request: in Triton's words, if these are configured."""
    if not catalog.triton or error.reason not in SIGNATURE_REASONS:
        return error.detail
    return of_request(error, request, sizes, catalog.resolve(request.model, request.version))
