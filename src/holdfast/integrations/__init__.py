"""Integrations with other libraries, one module each. The library itself never imports them."""
