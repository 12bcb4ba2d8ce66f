"""One round of a federated method: who takes part, who steps, what travels, what it costs."""
