"""The fast host: this server inside an Envoy that pyvoy brings (docs/hosts.md)."""
