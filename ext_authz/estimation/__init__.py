"""PURE: what a request asks for and what it will cost."""
