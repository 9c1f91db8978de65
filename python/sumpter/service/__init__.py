"""A parameter service for training loops of your own, in the words of PHub.

    from sumpter import service

    with service.connect("digits.ticket", rank=0) as hub:
        hub.init_variable("weights", weights, "adam", lr=0.01)
        weights = hub.push_pull("weights", gradient)

`create_service` makes a namespace: a job with a name and a token, on a coordinator. Its workers
`connect`, give variables a value and an update rule, push gradients and pull new values. Works on
NumPy arrays and on any DLPack array in host memory. The interface is that of PHub (Luo et al.,
"Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training", 2018,
section 3.1).
"""

from sumpter._errors import VariableError
from sumpter.service.connection import Connection, Variable, connect
from sumpter.service.ticket import Service, Ticket, create_service

__all__ = [
    "Connection",
    "Service",
    "Ticket",
    "Variable",
    "VariableError",
    "connect",
    "create_service",
]
