"""The laboratory of Sumpter: what measures, predicts and draws.

The product does not import it. The commands `sumpter bench`, `record`, `report` and `whatif` are
entry points of this distribution in the group `sumpter.commands`.
"""
