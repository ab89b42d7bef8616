"""Makes an example log of impressions and clicks that come apart: as a batch, following folders, or streaming.

``publish`` has what all ways share: a chunk of events is routed to partitions (``tables``, ``rules``), and a closed
partition is joined (``join``) and staged. ``follow`` runs batches and watches over a spool of files,
``stream`` is the Beam pipeline for Flink and others, fed by ``stream_sources``. ``command`` is the command.
"""
