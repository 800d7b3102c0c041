"""The Llama family written out for a CPU: adapters folded in, prompts read once a group, sampling remembered.

Other models, quantised weights and accelerators keep transformers' own forward; `weights.fold` says None to them.
"""
