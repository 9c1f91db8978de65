"""`sumpter doctor --hosts`: the checks of several machines, and of what is between each two.

An agent on each machine measures (agent.py, datagrams.py), a session starts the agents over the
launcher's attendants (session.py), pure functions say what the figures mean (findings.py).
"""
