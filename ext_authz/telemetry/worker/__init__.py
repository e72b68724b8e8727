"""A second process that asks for telemetry, so that reading pages holds up no Check."""
