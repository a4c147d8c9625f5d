"""Reading a log without Spark; `lastword.streaming.reading` reads by the same views.

```
 view          what a reader of an isolation level sees at a table version; the columns of each read
 time_travel   which versions answer a question about the past
 arrow_rows    records of an offset range          arrow_ranges    an offset range in pieces that processes read by themselves
 arrow_frames  the newest record of each key       arrow_changes   changes between two offset vectors
 sql           the newest record of each key as one query for other engines
 key_history   the records of one key, and what each of them is to readers and to the cleaner
 record_page   a few records for people, with at most so many bytes read
 stale_keys    keys of which a newer row is a dead letter
```
"""
