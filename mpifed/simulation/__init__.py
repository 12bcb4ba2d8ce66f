"""One round of a federated method: sampling of clients, client and server functions, communication, costs."""
