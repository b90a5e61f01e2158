"""The status of a record in the words of the documents 002, 003 and 004: functions of the record, never stored.

Each table (`view.View`) says what a document calls a state and which steps it allows. The projections of
`deltaci.audit` read the event log through the same tables.
"""
