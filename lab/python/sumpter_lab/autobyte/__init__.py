"""Training of AutoByte's network, on simulated speed surfaces and on measurements."""
