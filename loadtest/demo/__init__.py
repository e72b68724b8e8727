"""`make demo`: the same overload on the same GPUs, with the gate off and with it on."""
