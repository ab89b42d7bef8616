"""Makes an example log from separate impressions and clicks: as a batch, following folders, or streaming.

``publish`` has the shared steps: a chunk of events is routed to partitions (``tables``, ``rules``), and a closed
partition is joined (``join``) and staged. ``follow`` runs batches and watches over a spool of files,
``stream`` is the Beam pipeline for Flink and others, fed by ``stream_sources``. ``command`` is ``ctr ingest events``.
"""
