#!/bin/bash
# ctr train on four nodes with one worker each; more on a node with --ntasks-per-node.
#
#     sbatch slurm.sh logs/mind --config mind.yaml --out runs/mind
#
# The log and the run directory are on a file system that all nodes share. `ctr` is on the PATH of all nodes.
#SBATCH --job-name=ctr-train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --distribution=block
#SBATCH --output=ctr-train-%j.log
set -euo pipefail

port=$((20000 + SLURM_JOB_ID % 10000))
workers=""
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for ((local = 0; local < SLURM_NTASKS_PER_NODE; local++)); do
        workers+="${workers:+, }\"$host:$((port + local))\""
    done
done
export CLUSTER="{\"worker\": [$workers]}"
# Processors are divided among the workers of a node, unless you say otherwise.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
export TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-$SLURM_CPUS_PER_TASK}

# Each task adds its own number.
worker='export TF_CONFIG="{\"cluster\": $CLUSTER, \"task\": {\"type\": \"worker\", \"index\": $SLURM_PROCID}}"
exec ctr train "$@"'

# A worker that is lost ends the others, with status 75; --wait ends one that hangs. Then all resume.
for attempt in 1 2 3 4; do
    status=0
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=600 bash -c "$worker" worker "$@" || status=$?
    # 1: bad input, and 2: a wrong command line, would be the same the next time.
    if [[ $status -le 2 ]]; then
        exit "$status"
    fi
    echo "attempt $attempt ended with status $status" >&2
done
exit "$status"
