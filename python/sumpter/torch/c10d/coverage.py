"""Which collectives of torch.distributed Sumpter carries, and which it leaves to Gloo.

One row for each collective method of the backend. A test calls every method in a group and
compares what happened with its row, so `sumpter doctor` cannot say anything else than the truth.
"""

from dataclasses import dataclass

SUMPTER = "sumpter"
GLOO = "gloo"

_NO_SUM = "it sums nothing, so there is nothing to gain"
_ONE_TO_ONE = "between two ranks there is nothing to sum"
_ODD_REDUCTIONS = (
    "reductions with a bitwise op, of element types without a kernel, or of sparse tensors"
)


@dataclass(frozen=True)
class Row:
    """One collective: the backend's method, the call of torch.distributed that leads to it, who
    carries it and, where it is Gloo, why; `otherwise` says what of it goes to Gloo nevertheless."""

    method: str
    call: str
    carrier: str
    why: str = ""
    otherwise: str = ""


def _carried(method: str, call: str, otherwise: str = "") -> Row:
    return Row(method, call, SUMPTER, otherwise=otherwise)


TABLE = (
    _carried("allreduce", "all_reduce", _ODD_REDUCTIONS),
    _carried("allreduce_coalesced", "all_reduce_coalesced", _ODD_REDUCTIONS),
    _carried("reduce", "reduce", _ODD_REDUCTIONS),
    _carried("reduce_scatter", "reduce_scatter", _ODD_REDUCTIONS),
    _carried("reduce_scatter_single", "reduce_scatter_tensor", _ODD_REDUCTIONS),
    _carried("reduce_scatter_single_coalesced", "reduce_scatter_tensor", _ODD_REDUCTIONS),
    _carried("broadcast", "broadcast"),
    _carried("allgather", "all_gather"),
    _carried("allgather_coalesced", "all_gather_coalesced"),
    _carried("all_gather_single", "all_gather_into_tensor"),
    _carried("all_gather_single_coalesced", "all_gather_into_tensor"),
    _carried("barrier", "barrier"),
    _carried("monitored_barrier", "monitored_barrier"),
    Row("allreduce_sparse", "all_reduce of sparse tensors", GLOO, "a kernel needs dense memory"),
    Row("gather", "gather", GLOO, _NO_SUM),
    Row("scatter", "scatter", GLOO, _NO_SUM),
    Row("alltoall", "all_to_all", GLOO, _NO_SUM),
    Row("all_to_all_single", "all_to_all_single", GLOO, _NO_SUM),
    Row("send", "send", GLOO, _ONE_TO_ONE),
    Row("recv", "recv", GLOO, _ONE_TO_ONE),
    Row("recv_anysource", "recv from any rank", GLOO, _ONE_TO_ONE),
)
