# Sourced by the batch scripts of `mpifed launch`: mpifed_launch COMMAND... runs COMMAND on all ranks of the Slurm job,
# forwards warning signals to them, requeues the job if requested, and exits with the exit code of COMMAND.
#
#   MPIFED_LAUNCHER      pmix, pmi2 or another type of `srun --mpi=list`, srun (with the type that the site has set), or mpirun;
#                        or several in the order to try. The first launcher that connects all ranks of a short test program is
#                        used. By default all are tried.
#   MPIFED_TEST_SECONDS  time limit of each test program; by default 90 s and a second for every four ranks
#   MPIFED_CONTAINER     command that executes COMMAND in a container, quoted for the shell, e.g. apptainer exec image.sif
#   MPIFED_REQUEUE       1: requeue the job if a signal or a preemption ends it before its work is done.

_mpifed_signals=0 _mpifed_child='' _mpifed_stopping=''
# Sends the signal to stop repeatedly, because ranks that are still importing Python modules may ignore it.
_mpifed_stop() {
  if [ -n "$_mpifed_child" ] && [ -z "$_mpifed_stopping" ]; then
    _mpifed_stopping=1
    while kill -USR1 "$_mpifed_child" 2>/dev/null; do sleep 3; done &
  fi
}
trap '_mpifed_signals=$((_mpifed_signals + 1)); _mpifed_stop' USR1 TERM

_mpifed_log() { echo "mpifed: $*" >&2; }

# Removes variables of another job from the environment, in case sbatch was called inside a job.
_mpifed_clean() {
  local name
  if [ -n "${SLURM_ARRAY_JOB_ID:-}" ] &&
    [[ "$(scontrol show job -o "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}" 2>/dev/null) " != "JobId=$SLURM_JOB_ID "* ]]; then
    unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
  fi
  # srun accepts only one of them; without both, a step has the memory of its job
  [ -z "${SLURM_MEM_PER_CPU:-}" ] || [ -z "${SLURM_MEM_PER_NODE:-}" ] || unset SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE
  for name in ${!PMI_*} ${!PMIX_*} ${!OMPI_COMM_WORLD_*} SLURM_STEP_NUM_TASKS SLURM_WORKING_DIR; do
    [[ $name == PMIX_MCA_* ]] || unset "$name"
  done
  # Pass the variables that the script has set to the ranks, even under sbatch --export=NONE
  export SLURM_EXPORT_ENV=ALL
  [ -d "${TMPDIR:-/tmp}" ] || { _mpifed_log "TMPDIR=$TMPDIR is missing on this node: using /tmp"; unset TMPDIR; }
}

# Sets _mpifed_start to the command line of launcher $1.
_mpifed_set_start() {
  if [ "$1" = mpirun ]; then
    _mpifed_start=(mpirun -n "$SLURM_NTASKS")
    export SLURM_MPI_TYPE=none  # the daemons of mpirun are not ranks, and MPICH's fail if Slurm treats them as ranks
    # By default, Open MPI binds all threads of a rank to one core
    export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
    # Open MPI's mpirun otherwise refuses to start as root, e.g. in a container
    [ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  else
    unset SLURM_MPI_TYPE
    # If a rank fails, the others are ended; srun does not inherit --cpus-per-task from sbatch
    _mpifed_start=(srun "--mpi=$1" --kill-on-bad-exit=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}")
    [ "$1" != srun ] || _mpifed_start=(srun "${_mpifed_start[@]:2}")
  fi
}

# Succeeds if launcher $1 connects all ranks; otherwise appends the reason to _mpifed_tried. Rank 0 of the test program removes
# the file MPIFED_UNFINISHED, if it sees the folder: in a container it may have another /tmp.
_mpifed_connects() {
  local shown code limit=${MPIFED_TEST_SECONDS:-$((90 + SLURM_NTASKS / 4))}
  if [ "$1" = mpirun ]; then
    command -v mpirun >/dev/null || { _mpifed_tried+="  mpirun: not on PATH"$'\n'; return 1; }
  elif [ "$1" != srun ] && ! grep -qwF -- "$1" <<<"$_mpifed_types"; then
    _mpifed_tried+="  srun --mpi=$1: not supported by this Slurm"$'\n'
    return 1
  fi
  _mpifed_set_start "$1"
  shown=$(timeout -k 10 "$limit" "${_mpifed_start[@]}" "${_mpifed_container[@]}" python -c '
import os, sys
from mpi4py import MPI
world, ranks, mark = MPI.COMM_WORLD, int(sys.argv[1]), sys.argv[2]
if world.rank == 0 and os.path.exists(mark):
    os.remove(mark)
sys.exit(world.size != ranks and f"expected a world of {ranks} processes, got {world.size}")
' "$SLURM_NTASKS" "$MPIFED_UNFINISHED" 2>&1 | tr -d '\0'; exit "${PIPESTATUS[0]}")
  code=$?
  [ "$code" -ne 0 ] || return 0
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    _mpifed_late=$limit
    shown="no end within $limit s; $shown"
  fi
  _mpifed_tried+="  ${_mpifed_start[*]}: fails with"$'\n'"$(sed 's/^/      /' <<<"$shown" | tail -n 20)"$'\n'
  return 1
}

# Selects a launcher, or exits with code 71.
_mpifed_choose() {
  local candidates candidate library
  library=$("${_mpifed_container[@]}" python -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*MPI.Get_library_version().split("\n")[0].split(",")[0].replace("Version:", "").split())') ||
    { [ "$_mpifed_signals" -gt 0 ] && return; _mpifed_log "python cannot load an MPI library"; exit 71; }
  case $library in
    "Open MPI"*) candidates="pmix mpirun pmi2 srun" ;;
    *CRAY*) candidates="cray_shasta srun pmi2 pmix" ;;
    *) candidates="pmi2 mpirun pmix srun" ;;
  esac
  _mpifed_types=$(srun --mpi=list 2>&1) _mpifed_tried='' _mpifed_late=''
  read -ra candidates <<<"${MPIFED_LAUNCHER:-$candidates}"
  for candidate in "${candidates[@]}"; do
    if _mpifed_connects "$candidate"; then
      _mpifed_log "$SLURM_NTASKS ranks on $SLURM_NNODES nodes of $library by ${_mpifed_start[*]}"
      return
    fi
  done
  [ "$_mpifed_signals" -eq 0 ] || return  # the signal may have ended the test programs
  if [ -n "$_mpifed_late" ]; then
    _mpifed_log "no launcher connects $SLURM_NTASKS ranks of $library, and a test program has not ended within $_mpifed_late s"$'\n'"$_mpifed_tried"
    _mpifed_log "if the ranks need longer to start Python, e.g. from a slow file system, set MPIFED_TEST_SECONDS=$((4 * _mpifed_late))"
    exit 71
  fi
  _mpifed_log "launcher and MPI library do not match: no launcher connects $SLURM_NTASKS ranks of $library"$'\n'"$_mpifed_tried"
  if [ -n "${MPIFED_LAUNCHER:-}" ]; then
    _mpifed_log "unset MPIFED_LAUNCHER=$MPIFED_LAUNCHER to try all launchers"
  else
    _mpifed_log "put the mpirun of this library first on PATH, or use a Slurm with pmix or pmi2 (Cray: cray_shasta)"
  fi
  _mpifed_log "Open MPI needs pmix or its own mpirun, MPICH pmi2 or its own mpirun"
  exit 71
}

# Requeues the job if it is unfinished and was not cancelled. $1: the exit code.
_mpifed_requeue() {
  local job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID} state
  state=$(scontrol show job "$job")
  # While this script runs, the state of the job changes only if it is cancelled or requeued by others
  [[ $state == *JobState=RUNNING* ]] || return
  if [ "$1" -eq 85 ] || [ "$_mpifed_signals" -gt 0 ] || [[ $state =~ PreemptTime=[0-9] ]]; then
    _mpifed_log "requeued after exit code $1"
    scontrol requeue "$job"
  fi
}

# If a node of the job does not respond, waits until Slurm notices and requeues the job. If the script ended earlier, the job
# would count as failed.
_mpifed_await_requeue() {
  local limit=60 end
  timeout -k 5 60 srun --overlap --mpi=none --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 true \
    >/dev/null 2>&1 && return
  limit=$((limit + $(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\) sec.*/\1/p')))
  _mpifed_log "a node of this job does not respond: waiting up to $limit s for Slurm to notice"
  end=$((SECONDS + limit))
  while [ "$_mpifed_signals" -eq 0 ] && [ "$SECONDS" -lt "$end" ]; do sleep 1; done
}

mpifed_launch() {
  local code=127 now before ranks_per_node
  local IFS=$' \t\n'
  set +eu  # this function handles exit codes and unset variables
  : "${SLURM_JOB_ID:?mpifed: this script is for sbatch}" "${SLURM_NTASKS:=$SLURM_NNODES}"
  _mpifed_clean
  export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
  export TERM=dumb  # the output is a file, although mpirun gives its ranks a terminal
  eval "_mpifed_container=(${MPIFED_CONTAINER:-})"
  export MPIFED_UNFINISHED
  MPIFED_UNFINISHED=$(mktemp)
  ranks_per_node=$(((SLURM_NTASKS + SLURM_NNODES - 1) / SLURM_NNODES))
  [ "$(nproc)" -ge "$ranks_per_node" ] || export OMPI_MCA_mpi_yield_when_idle=1  # waiting ranks give up their cores
  _mpifed_choose
  if [ "$_mpifed_signals" -gt 0 ]; then
    code=85
  else
    # Rank 0, on this node, removes the file after success, if it could do so in the test program
    if [ -e "$MPIFED_UNFINISHED" ]; then
      rm -f "$MPIFED_UNFINISHED"
    elif [ -n "$MPIFED_UNFINISHED" ]; then
      : >|"$MPIFED_UNFINISHED"
    fi
    # Ignore the signal until the ranks handle it
    "${_mpifed_start[@]}" bash -c 'trap "" USR1; exec "$@"' bash "${_mpifed_container[@]}" "$@" &
    _mpifed_child=$!
    [ "$_mpifed_signals" -eq 0 ] || _mpifed_stop  # the signal came between the last two lines
    while  # a signal ends `wait` early: wait again
      before=$_mpifed_signals
      wait "$_mpifed_child"
      now=$?
      [ "$now" -eq 127 ] || code=$now
      [ "$before" -ne "$_mpifed_signals" ]
    do :; done
    if [ "$code" -eq 0 ] && [ -e "$MPIFED_UNFINISHED" ]; then  # Open MPI's mpirun does this after the loss of a node
      _mpifed_log "the launcher ended with exit code 0, but the command has not finished"
      code=1
    fi
    rm -f "$MPIFED_UNFINISHED"
  fi
  if [ "$code" -ne 0 ] && [ "${MPIFED_REQUEUE:-}" = 1 ]; then
    case $code in 2|3|71|85) ;; *) [ "$_mpifed_signals" -gt 0 ] || _mpifed_await_requeue ;; esac
    _mpifed_requeue "$code"
  elif [ "$code" -eq 85 ]; then
    _mpifed_log "stopped by a signal: submit the same script again to continue"
  fi
  exit "$code"
}
