"""The tests: promises about natsproto, and the kit that keeps them."""
