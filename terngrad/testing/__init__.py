"""Helpers that tests of several modules share: conformance, certificates, ports, processes."""
