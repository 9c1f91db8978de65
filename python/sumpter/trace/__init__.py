"""What a running job did, on one clock: files of `sumpter trace`, read and explained.

from sumpter import trace

recorded = trace.read("run.pftrace")
for one in trace.explain(recorded):
    print(*one.sentences, sep="\\n")
print(*trace.verdict(trace.explain(recorded)), sep="\\n")
"""

from sumpter._errors import TraceError
from sumpter.trace.file import Slice, Trace, read
from sumpter.trace.verdict import verdict
from sumpter.trace.waits import Explanation, explain

__all__ = ["Explanation", "Slice", "Trace", "TraceError", "explain", "read", "verdict"]
