"""The whole fleet on one machine, with servers of its own: `ops quickstart`, `make run`, `make rehearse`."""
