"""The status of a record in the vocabulary of each specification document (docs/spec): computed, never stored.

A table (`view.View`) maps our states to those of a document and lists the steps that it allows; `steps`, `workstreams`
and `queue` have the tables. The projections of `deltaci.audit` read the event log through them. `needs` computes what
other jobs read of a job. The package imports only `deltaci.core`. Start with `view`.
"""
