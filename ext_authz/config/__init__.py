"""From a YAML file to `Settings`: strict, everything wrong reported at once."""
