/* The protocol retire-validate-max (specs/README.md) in Promela, for the model checker Spin.
 *
 * No code of the search in models/vmmref_models is in it, but the size of a step and what a state remembers are the
 * search's (README.md). Both must count the same states and transitions.
 * One process for each thing that acts by itself: a lease (the producer's host and its stream), a rank's stream, a copy
 * of a proxy in its rank's process, and the environment. Every action is one d_step that ends where it began, so that no
 * state differs from another one by a program counter alone.
 *
 *   spin -DLEASES=2 -DHALVES=2 -a retire_validate_max.pml
 *   cc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -n -m1000000
 *
 * Liveness (LIV-1, LIV-2), under weak fairness:
 *   spin -DLEASES=2 -DLIVENESS -a retire_validate_max.pml
 *   cc -O2 -DNFAIR=6 -DNOREDUCE -o pan pan.c && ./pan -a -f -n -N every_lease_ends
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef UNITS
#define UNITS 2         /* ranges of equal size; a lease takes one */
#endif
#ifndef LEASES
#define LEASES 2
#endif
#ifndef HALVES
#define HALVES 2        /* pieces in which bytes are copied, 1 or 2 */
#endif
#ifndef DUPLICATING
#define DUPLICATING 0   /* so many ranks get two copies of each proxy */
#endif
#ifndef REVOKES
#define REVOKES 0       /* how often a dispatched lease may be taken back */
#endif
#ifndef CANCELS
#define CANCELS 0       /* how often a lease may be cancelled before it is dispatched */
#endif
#ifndef READER_FAILURES
#define READER_FAILURES 0
#endif
#ifndef PRODUCER_DEATHS
#define PRODUCER_DEATHS 0   /* 1: the producer's process may die, and its queued work with it */
#endif
#ifndef DEVICE_WAIT
#define DEVICE_WAIT 0       /* 1: proxies leave at once, and readers wait for R >= 2n on their stream */
#endif
#ifndef FAILED_ACKNOWLEDGES
#define FAILED_ACKNOWLEDGES 1   /* 0 is wrong on purpose: CON-4 */
#endif
#define RANKS 2
#if DUPLICATING > 0
#define COPIES 2
#else
#define COPIES 1
#endif

mtype = { unpublished, live, looked, claimed, queued, retired, freed };
mtype = { idle, enqueued, finished, over };

/* The memory that all share. */
byte R[SLOTS];                       /* ready words */
byte A_words[SLOTS * RANKS];         /* acknowledgement words */
byte bytes[UNITS * HALVES];          /* whose bytes each piece of a range holds; 0: nobody's */
#define A(slot, rank)   A_words[(slot) * RANKS + (rank)]
#define BYTES(unit, half)   bytes[(unit) * HALVES + (half)]

/* What the producer's host knows. Lease l is published as number l + 1. */
mtype phase[LEASES] = unpublished;
bool sent[LEASES];                   /* its proxies have left */
bool excused[LEASES];                /* somebody has taken it back: its readers may find it stale */
byte slot_of[LEASES];
byte unit_of[LEASES];
byte generation[LEASES];
byte stored[LEASES];                 /* pieces of copy and ready store that are done */
byte issued[SLOTS];                  /* the last generation of each slot */
bool slot_taken[SLOTS];
bool unit_used[UNITS];
bool unit_taken[UNITS];
byte revokes = REVOKES;
byte cancels = CANCELS;
bool alive = true;                   /* the producer's process */
byte producer_deaths = PRODUCER_DEATHS;

/* What each rank knows: its table, its stream, and what became of each copy of a proxy. */
byte table_entries[SLOTS * RANKS];   /* the newest generation of each slot that has been used */
mtype copies[RANKS * LEASES * COPIES] = idle;
#define TABLE(slot, rank)   table_entries[(slot) * RANKS + (rank)]
#define COPY(rank, lease, copy)   copies[((rank) * LEASES + (lease)) * COPIES + (copy)]
chan stream[RANKS] = [LEASES * COPIES] of { byte, byte };   /* lease, copy; the oldest first */
byte turn[RANKS];                    /* which piece of the oldest reader comes next */
bool foreign[RANKS];                 /* it has copied bytes that are not its lease's own */
byte reader_failures = READER_FAILURES;
#define CHECKING        HALVES
#define ACKNOWLEDGING   (HALVES + 1)
#define FAILED          (HALVES + 2)    /* what was queued has failed and ended; its acknowledgement is left */

hidden byte l;
hidden byte c;

#define all_stored(lease)   (stored[lease] == HALVES + 1)
#define acknowledged(lease, rank)   (A(slot_of[lease], rank) == generation[lease])
#define complete(lease)     (acknowledged(lease, 0) && acknowledged(lease, 1))
#define has_finished(rank, lease)   (COPY(rank, lease, 0) == finished || COPY(rank, lease, COPIES - 1) == finished)

/* A slot or range is taken when it is free; of those that were never used the lowest, for they are alike. */
#define slot_may_be_taken(slot)   (!slot_taken[slot] && (slot == 0 || issued[slot] || issued[slot - (slot > 0)]))
#define unit_may_be_taken(unit)   (!unit_taken[unit] && (unit == 0 || unit_used[unit] || unit_used[unit - (unit > 0)]))
#define ME   _pid
#define publishable(slot, unit)   (alive && phase[ME] == unpublished && (ME == 0 || phase[ME - (ME > 0)] != unpublished) && \
                                   slot_may_be_taken(slot) && unit_may_be_taken(unit))

inline publish(slot, unit) {
    slot_taken[slot] = true;
    issued[slot]++;                                     /* GEN-1 */
    unit_taken[unit] = true;
    unit_used[unit] = true;
    slot_of[ME] = slot;
    unit_of[ME] = unit;
    generation[ME] = issued[slot];
    phase[ME] = live
}

inline store_next_piece() {
    if
    :: stored[ME] < HALVES -> BYTES(unit_of[ME], stored[ME]) = ME + 1
    :: else ->
        assert(R[slot_of[ME]] < 2 * generation[ME]);    /* CTL-6 */
        R[slot_of[ME]] = 2 * generation[ME]
    fi;
    stored[ME]++
}

inline give_back() {
    /* REC-1; its readers have all ended unless somebody took it back */
    assert(excused[ME] || (has_finished(0, ME) && has_finished(1, ME)));
    assert(slot_taken[slot_of[ME]] && unit_taken[unit_of[ME]]);   /* REC-5 */
    slot_taken[slot_of[ME]] = false;
    unit_taken[unit_of[ME]] = false;
    phase[ME] = freed
}

active [LEASES] proctype producer() {
end:
    do
    :: d_step { publishable(0, 0) -> publish(0, 0) }
#if UNITS > 1
    :: d_step { publishable(0, 1) -> publish(0, 1) }
#endif
#if SLOTS > 1
    :: d_step { publishable(1, 0) -> publish(1, 0) }
#endif
#if SLOTS > 1 && UNITS > 1
    :: d_step { publishable(1, 1) -> publish(1, 1) }
#endif
    :: d_step { alive && phase[ME] != unpublished && !all_stored(ME) -> store_next_piece() }
    :: d_step { alive && phase[ME] == live && (all_stored(ME) || DEVICE_WAIT) && !sent[ME] -> sent[ME] = true }       /* PUB-2 */
    :: d_step { alive && phase[ME] == live && sent[ME] && complete(ME) -> phase[ME] = looked }       /* REC-1 */
    :: d_step { alive && phase[ME] == looked -> phase[ME] = claimed }                                  /* REC-3 */
    :: d_step { alive && phase[ME] == claimed -> phase[ME] = queued }
    :: d_step { alive && phase[ME] == queued && all_stored(ME) ->                                      /* REC-2 */
            assert(R[slot_of[ME]] < 2 * generation[ME] + 1);                                  /* CTL-6 */
            R[slot_of[ME]] = 2 * generation[ME] + 1;
            phase[ME] = retired }
    :: d_step { alive && phase[ME] == retired && all_stored(ME) -> give_back() }                       /* PUB-3 */
    od
}

#undef ME
#define RANK   (_pid - LEASES)

inline leave(fate) {
    stream[RANK] ? l, c;
    COPY(RANK, l, c) = fate;
    turn[RANK] = 0;
    foreign[RANK] = false
}

/* PUB-2: the proxy of a lease left when the host had seen R, so that no reader waits; with DEVICE_WAIT the oldest does. */
#define has_come(lease)   (stream[RANK] ? [lease, _] && R[slot_of[lease]] >= 2 * generation[lease])
#if LEASES == 1
#define ready_has_come    has_come(0)
#elif LEASES == 2
#define ready_has_come    (has_come(0) || has_come(1))
#else
#define ready_has_come    (has_come(0) || has_come(1) || has_come(2))
#endif
#define may_copy          (turn[RANK] > 0 || !DEVICE_WAIT || ready_has_come)

inline copy_out() {
    stream[RANK] ? <l, c>;
    foreign[RANK] = foreign[RANK] || BYTES(unit_of[l], turn[RANK]) != l + 1;
    turn[RANK]++
}

inline check() {
    stream[RANK] ? <l, c>;
    if
    :: R[slot_of[l]] == 2 * generation[l] ->
        assert(!foreign[RANK]);                         /* CON-1, CON-5 */
        turn[RANK]++
    :: else ->
        assert(excused[l] || has_finished(RANK, l));    /* CON-5: nobody is told "stale" without a reason */
        leave(over)
    fi
}

inline acknowledge() {
    stream[RANK] ? <l, c>;
    if
    :: A(slot_of[l], RANK) < generation[l] -> A(slot_of[l], RANK) = generation[l]             /* ACK-2 */
    :: else
    fi;
    leave(finished)
}

active [RANKS] proctype rank_stream() {
end:
    do
    :: d_step { nempty(stream[RANK]) && turn[RANK] < HALVES && may_copy -> copy_out() }
    :: d_step { nempty(stream[RANK]) && turn[RANK] == CHECKING -> check() }
    :: d_step { nempty(stream[RANK]) && turn[RANK] >= ACKNOWLEDGING -> acknowledge() }
    od
}

#undef RANK
#define NUMBER   (_pid - LEASES - RANKS)
#define RANK     (NUMBER / (LEASES * COPIES))
#define LEASE    ((NUMBER / COPIES) % LEASES)
#define WHICH    (NUMBER % COPIES)
#define exists   (WHICH == 0 || RANK < DUPLICATING)

/* CON-3: the table admits each (slot, n) once, and nothing older. */
active [RANKS * LEASES * COPIES] proctype proxy_copy() {
end:
    do
    :: d_step { exists && sent[LEASE] && COPY(RANK, LEASE, WHICH) == idle ->
            if
            :: generation[LEASE] > TABLE(slot_of[LEASE], RANK) ->
                TABLE(slot_of[LEASE], RANK) = generation[LEASE];
                COPY(RANK, LEASE, WHICH) = enqueued;
                stream[RANK] ! LEASE, WHICH
            :: else -> COPY(RANK, LEASE, WHICH) = over
            fi }
    od
}

#undef RANK

inline take_back(lease) {
    phase[lease] = claimed;
    excused[lease] = true
}

#define not_claimed(lease)   (phase[lease] == live || phase[lease] == looked)
#define can_fail(rank)       (reader_failures && nempty(stream[rank]) && turn[rank] < ACKNOWLEDGING)
#define revoke(lease)   d_step { alive && revokes && sent[lease] && not_claimed(lease) -> revokes--; take_back(lease) }
#define cancel(lease)   d_step { alive && cancels && !sent[lease] && not_claimed(lease) -> cancels--; take_back(lease) }

/* CON-4: a reader whose work has failed acknowledges when what it queued has ended. */
inline fail(rank) {
    reader_failures--;
    foreign[rank] = false;
    if
    :: FAILED_ACKNOWLEDGES -> turn[rank] = FAILED
    :: else ->
        stream[rank] ? l, c;
        COPY(rank, l, c) = over;
        turn[rank] = 0
    fi
}

active proctype environment() {
end:
    do
    :: revoke(0)
    :: cancel(0)
#if LEASES > 1
    :: revoke(1)
    :: cancel(1)
#endif
#if LEASES > 2
    :: revoke(2)
    :: cancel(2)
#endif
    :: d_step { can_fail(0) -> fail(0) }
    :: d_step { can_fail(1) -> fail(1) }
    :: d_step { alive && producer_deaths -> producer_deaths--; alive = false }
#ifdef LIVENESS
    :: d_step { true -> skip }   /* nothing has to go wrong: fairness to the environment asks for no fault */
#endif
    od
}

#ifdef LIVENESS
#define ends(lease)   [] (phase[lease] != unpublished -> <> (phase[lease] == freed || !alive))
#define runs_dry(rank)   [] (len(stream[rank]) > 0 -> <> (len(stream[rank]) == 0))
#if LEASES == 1
ltl every_lease_ends { ends(0) }
#elif LEASES == 2
ltl every_lease_ends { ends(0) && ends(1) }
#else
ltl every_lease_ends { ends(0) && ends(1) && ends(2) }
#endif
ltl every_stream_runs_dry { runs_dry(0) && runs_dry(1) }
#endif
