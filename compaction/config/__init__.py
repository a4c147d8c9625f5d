"""Settings: `keys` names every one with type, default, range and synonyms; `topic_config` parses them and reports all mistakes at once."""
