"""What tests of several modules share: conformance suites, certificates, ports, processes."""
