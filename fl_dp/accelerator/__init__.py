"""Accelerator: sums and secure noise on the device that holds the tensors. Needs torch.

Everything here runs on any device; on the CPU, NumPy's way is quicker and stays the default.
"""
