"""The status of a record in the vocabulary of each specification document (docs/spec): computed, never stored.

A table (`view.View`) maps our states to those of a document and lists the steps that it allows. The projections of
`deltaci.audit` read the event log through the same tables.
"""
