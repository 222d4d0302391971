#!/bin/bash
# A coordinator and trainers as one heterogeneous job. It ends with the trainers, and with their exit code; the
# arguments are the job file and the trainers' command:
#
#     sbatch train.sh job.toml python train.py
#
#SBATCH --job-name=stoker-train
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ntasks=1 --cpus-per-task=1
#SBATCH hetjob
#SBATCH --ntasks=1
set -eu
job=$1
shift

loader-server index "$job"
# At any free port: workers and trainers find it by its endpoint file. Slurm ends it once this script has ended.
srun --het-group=0 loader-server coordinator "$job" --listen "tcp://0.0.0.0:*" &
srun --het-group=1 --kill-on-bad-exit "$@"
