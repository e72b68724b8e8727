"""A model server without a GPU: published step times played back in real time.

`profiles` says what a server costs, the engines (`batching`, `fixed`) turn that into events in
virtual time, `driver` plays them on the wall clock, `server` speaks HTTP and `page` publishes the
gauges under the names real engines use. Nothing here knows who decides about admission.
"""
