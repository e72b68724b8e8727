"""Wall-clock load tests: GPU backends to stand behind Envoy and the scenarios that load them."""
