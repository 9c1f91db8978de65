"""`import sumpter.server` runs BytePS' server or scheduler until the job ends, by DMLC_ROLE.

As with `import byteps.server`, the import itself does it and returns when the job is over. A token
is needed (SUMPTER_TOKEN or SUMPTER_TOKEN_FILE). `sumpter bpslaunch` does the same.
"""

from sumpter import _roles

_roles.run()
