"""Key/value buckets on streams (ADR-8)."""
