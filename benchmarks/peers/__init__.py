"""One module a peer, each with a `Peer` class behind `benchmarks.peers.base.Peer`."""
