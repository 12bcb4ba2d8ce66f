# Sourced by the batch scripts that `mpifed launch` writes: mpifed_launch COMMAND... runs COMMAND on all ranks of the Slurm
# job, passes a warning signal on to them, puts the job back into the queue where that was asked for, and ends the script
# with the exit code of COMMAND.
#
#   MPIFED_LAUNCHER  pmix, pmi2 or another type of `srun --mpi=list`, or mpirun; or several to be tried in this order. The first
#                    that joins all ranks of a program of three lines in one MPI world is taken. By default all are tried.
#   MPIFED_REQUEUE   1: a job that ends before its work is done, on a signal or a preemption, goes back into the queue.

_mpifed_signals=0 _mpifed_child='' _mpifed_asking=''
# Asks the ranks to stop, again and again: ranks that are still loading Python do not listen yet.
_mpifed_ask() {
  if [ -n "$_mpifed_child" ] && [ -z "$_mpifed_asking" ]; then
    _mpifed_asking=1
    while kill -USR1 "$_mpifed_child" 2>/dev/null; do sleep 3; done &
  fi
}
trap '_mpifed_signals=$((_mpifed_signals + 1)); _mpifed_ask' USR1 TERM

_mpifed_say() { echo "mpifed: $*" >&2; }

# Forgets what another job has left in the environment, where sbatch was called inside it or after it.
_mpifed_own() {
  local name
  if [ -n "${SLURM_ARRAY_JOB_ID:-}" ] &&
    [[ "$(scontrol show job -o "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}" 2>/dev/null) " != "JobId=$SLURM_JOB_ID "* ]]; then
    unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
  fi
  # srun takes one of them; without any, a step has the memory of its job
  [ -z "${SLURM_MEM_PER_CPU:-}" ] || [ -z "${SLURM_MEM_PER_NODE:-}" ] || unset SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE
  for name in ${!PMI_*} ${!PMIX_*} ${!OMPI_COMM_WORLD_*} SLURM_STEP_NUM_TASKS SLURM_WORKING_DIR; do
    [[ $name == PMIX_MCA_* ]] || unset "$name"
  done
  # The ranks get what the lines before have set, also where sbatch --export=NONE has kept the rest away
  export SLURM_EXPORT_ENV=ALL
  [ -d "${TMPDIR:-/tmp}" ] || { _mpifed_say "TMPDIR=$TMPDIR is missing on this node: /tmp is used"; unset TMPDIR; }
}

# Sets _mpifed_start to the words that start a command on all ranks.
_mpifed_way() {
  if [ "$1" = mpirun ]; then
    _mpifed_start=(mpirun -n "$SLURM_NTASKS")
    export SLURM_MPI_TYPE=none  # Slurm starts mpirun's daemons, which are no ranks; MPICH's refuse to be taken for some
    # Open MPI's would put all threads of a rank on one core
    export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
  else
    unset SLURM_MPI_TYPE
    # A rank that dies ends the others; sbatch's --cpus-per-task does not reach srun by itself
    _mpifed_start=(srun "--mpi=$1" --kill-on-bad-exit=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}")
  fi
}

# Whether the way joins all ranks; else a line on what happened in _mpifed_tried.
_mpifed_joins() {
  local shown
  if [ "$1" = mpirun ]; then
    command -v mpirun >/dev/null || { _mpifed_tried+="  mpirun: not on PATH"$'\n'; return 1; }
  elif ! grep -qwF -- "$1" <<<"$_mpifed_types"; then
    _mpifed_tried+="  srun --mpi=$1: this Slurm does not have it"$'\n'
    return 1
  fi
  _mpifed_way "$1"
  shown=$(timeout -k 10 90 "${_mpifed_start[@]}" python -c '
import sys
from mpi4py import MPI
world, ranks = MPI.COMM_WORLD, int(sys.argv[1])
sys.exit(world.size != ranks and f"{ranks} processes were started, and one of them sees {world.size}")
' "$SLURM_NTASKS" 2>&1 | tr -d '\0'; exit "${PIPESTATUS[0]}") && return
  _mpifed_tried+="  ${_mpifed_start[*]}: fails with"$'\n'"$(sed 's/^/      /' <<<"$shown" | tail -n 20)"$'\n'
  return 1
}

# Chooses the way, or ends the script.
_mpifed_choose() {
  local ways way library
  library=$(python -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*MPI.Get_library_version().split("\n")[0].split(",")[0].replace("Version:", "").split())') ||
    { [ "$_mpifed_signals" -gt 0 ] && return; _mpifed_say "python cannot load an MPI library"; exit 71; }
  case $library in "Open MPI"*) ways="pmix mpirun pmi2" ;; *) ways="pmi2 mpirun pmix" ;; esac
  _mpifed_types=$(srun --mpi=list 2>&1) _mpifed_tried=''
  read -ra ways <<<"${MPIFED_LAUNCHER:-$ways}"
  for way in "${ways[@]}"; do
    if _mpifed_joins "$way"; then
      _mpifed_say "$SLURM_NTASKS ranks on $SLURM_NNODES nodes of $library by ${_mpifed_start[*]}"
      return
    fi
  done
  [ "$_mpifed_signals" -eq 0 ] || return  # it may have ended what was tried
  _mpifed_say "launcher and MPI library do not fit: nothing joins $SLURM_NTASKS ranks of $library"$'\n'"$_mpifed_tried"
  if [ -n "${MPIFED_LAUNCHER:-}" ]; then
    _mpifed_say "unset MPIFED_LAUNCHER=$MPIFED_LAUNCHER to have all ways tried"
  else
    _mpifed_say "put the mpirun of this library first on PATH, or have pmix or pmi2 built into Slurm"
  fi
  _mpifed_say "Open MPI goes with pmix, MPICH with pmi2, each with its own mpirun"
  exit 71
}

# Puts the job back into the queue if it has more to do and nobody has cancelled it. $1: the exit code.
_mpifed_requeue() {
  local job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID} state
  state=$(scontrol show job "$job")
  # While this script runs, only a job that was cancelled, or requeued by others, is completing
  [[ $state == *JobState=RUNNING* ]] || return
  if [ "$1" -eq 85 ] || [ "$_mpifed_signals" -gt 0 ] || [[ $state =~ PreemptTime=[0-9] ]]; then
    _mpifed_say "back into the queue with exit code $1"
    scontrol requeue "$job"
  fi
}

# Stays until Slurm has noticed that a node of the job is lost, and puts the job back into the queue by itself: a script that
# has ended before is a failed job. Returns at once while all nodes answer.
_mpifed_await_slurm() {
  local limit=60 end
  timeout -k 5 60 srun --overlap --mpi=none --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 true \
    >/dev/null 2>&1 && return
  limit=$((limit + $(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\) sec.*/\1/p')))
  _mpifed_say "a node of this job does not answer: waiting up to $limit s for Slurm to notice"
  end=$((SECONDS + limit))
  while [ "$_mpifed_signals" -eq 0 ] && [ "$SECONDS" -lt "$end" ]; do sleep 1; done
}

mpifed_launch() {
  local code=127 now before ranks_a_node
  local IFS=$' \t\n'
  set +eu  # exit codes and unset variables are looked at here, whatever the lines before have set
  : "${SLURM_JOB_ID:?mpifed: this script is for sbatch}" "${SLURM_NTASKS:=$SLURM_NNODES}"
  _mpifed_own
  export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
  export TERM=dumb  # the output goes into a file, though mpirun shows its ranks a terminal
  ranks_a_node=$(((SLURM_NTASKS + SLURM_NNODES - 1) / SLURM_NNODES))
  [ "$(nproc)" -ge "$ranks_a_node" ] || export OMPI_MCA_mpi_yield_when_idle=1  # waiting ranks would take the cores of the others
  _mpifed_choose
  if [ "$_mpifed_signals" -gt 0 ]; then
    code=85
  else
    MPIFED_UNFINISHED=$(mktemp)  # rank 0, on this node, removes it when all is done
    export MPIFED_UNFINISHED
    # Until the ranks listen to the signal it must not end them
    "${_mpifed_start[@]}" bash -c 'trap "" USR1; exec "$@"' bash "$@" &
    _mpifed_child=$!
    [ "$_mpifed_signals" -eq 0 ] || _mpifed_ask  # it came between the last two lines
    while  # a signal ends `wait` early: wait again
      before=$_mpifed_signals
      wait "$_mpifed_child"
      now=$?
      [ "$now" -eq 127 ] || code=$now
      [ "$before" -ne "$_mpifed_signals" ]
    do :; done
    if [ "$code" -eq 0 ] && [ -e "$MPIFED_UNFINISHED" ]; then  # Open MPI's mpirun does so when it has lost a node
      _mpifed_say "the launcher ended with exit code 0, but the command has not come to its end"
      code=1
    fi
    rm -f "$MPIFED_UNFINISHED"
  fi
  if [ "$code" -ne 0 ] && [ "${MPIFED_REQUEUE:-}" = 1 ]; then
    case $code in 2|3|71|85) ;; *) [ "$_mpifed_signals" -gt 0 ] || _mpifed_await_slurm ;; esac
    _mpifed_requeue "$code"
  elif [ "$code" -eq 85 ]; then
    _mpifed_say "stopped by a signal: submit the same script again to continue"
  fi
  exit "$code"
}
