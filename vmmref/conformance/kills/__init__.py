"""The kill matrix: a producer or a consumer process dies at a named point of the protocol, and the others go on.

    python -m vmmref.conformance.kills [--role consumer-1] [--points BORROW] [--json FILE]

Every point is reached by counting calls and pieces of stream work in the process that dies, never by luck or time.
"""
