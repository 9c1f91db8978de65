import torch, torch.distributed as dist, sys
from c10d_common import *
join()
import sumpter.torch.collective as c
own, groups = dist.new_subgroups(group_size=2)
b=own._get_backend(torch.device("cpu")); print(b._group)
b2=dist.group.WORLD._get_backend(torch.device("cpu")); print(b2._group)
sys.stdout.flush()
t=torch.ones(5)
dist.all_reduce(t,group=own)
dist.barrier(); print("done")
