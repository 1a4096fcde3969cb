"""Agents spread over processes, on torch.distributed."""
