"""Reports: records in, tables and figures out; nothing here trains."""
