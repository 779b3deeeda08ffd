"""What methods that invent missing neighbours share: FedSage+, FedDEP and their kin."""
