import sys; print([m for m in sys.modules if "sumpter" in m])
import torch, torch.distributed as dist
from c10d_common import *
join()
bad=[]
op,f=dist.ReduceOp.BAND,torch.bitwise_and
for i in range(200):
    xs=every_rank((2,3),torch.uint8)
    e=xs[0]
    for x in xs[1:]: e=f(e,x)
    own=some_layout(xs[RANK]); b=own.clone(); dist.all_reduce(own, op=op)
    if not torch.equal(own,e): bad.append((own.stride(), own.storage_offset(), own.data_ptr()%64, b.tolist(), own.tolist(), e.tolist()))
print(len(bad)); 
for b in bad[:4]: print(b)
dist.destroy_process_group()
