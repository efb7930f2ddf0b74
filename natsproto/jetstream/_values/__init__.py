"""The values of the JetStream API: records, configurations and infos, their names, times and codes. No I/O."""
