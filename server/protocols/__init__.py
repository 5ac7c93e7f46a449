"""Protocols, one file each: generators that know public data and the batches they receive, and nothing else.

A protocol is a function with the following signature.

    def steps(public, channels, training, *, folder) -> Conversation

It yields requests, and receives the shuffled batch of each request. It yields `Publish` if users need an encoder that
it has trained, and receives that encoder in the form that users run. It returns a model, or None if nothing arrived to
train one on. It is deterministic in what it receives. The driver of a protocol (`server.protocols.drive`) has the
users: a simulation, a deployment, an attack's shadow models, a test.
"""
