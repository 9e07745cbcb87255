-- The protocol retire-validate-max (specs/README.md) in Murphi, for the model checker Rumur.
--
-- No code of the search in models/vmmref_models is in it, but the size of a step and what a state remembers are the
-- search's (README.md). Both must count the same states and transitions.
-- A reader knows its place in its rank's stream, so that there is no queue; a rule is one action of somebody.
--
--   rumur --output rvm.c retire_validate_max.m && cc -O2 -mcx16 -o rvm rvm.c -lpthread && ./rvm
--
-- For another scope change the constants. For ranks that may be exchanged make `rank` a scalarset(RANKS), and let the
-- function `gets` return c = 1: no rank gets a second copy then.

const
  SLOTS: 2;
  UNITS: 2;               -- ranges of equal size; a lease takes one
  LEASES: 2;
  HALVES: 2;              -- pieces in which bytes are copied
  RANKS: 2;
  COPIES: 1;              -- of each proxy, in a rank that gets more than one
  REVOKES: 0;             -- how often a dispatched lease may be taken back
  CANCELS: 0;             -- how often a lease may be cancelled before it is dispatched
  READER_FAILURES: 0;
  PRODUCER_DEATHS: 0;     -- 1: the producer's process may die, and its queued work with it
  DEVICE_WAIT: 0;         -- 1: proxies leave at once, and readers wait for R >= 2n on their stream
  FAILED_ACKNOWLEDGES: 1; -- 0 is wrong on purpose: CON-4
  ENDS_ARE_JUDGED: 0;     -- 1: a state is stuck unless every lease is back and every stream is dry (LIV-1, LIV-2)

type
  slot: 0 .. SLOTS - 1;
  unit: 0 .. UNITS - 1;
  half: 0 .. HALVES - 1;
  lease: 1 .. LEASES;
  rank: 0 .. RANKS - 1;
  copy: 1 .. COPIES;
  generation: 0 .. LEASES;
  ready_word: 0 .. 2 * LEASES + 1;
  phase: enum { unpublished, live, looked, claimed, queued, retired, freed };
  stage: enum { idle, copying, checking, acknowledging, acknowledging_failure, finished, over };

  slot_state: record
    taken: boolean;
    issued: generation;                   -- the last generation of the slot
    ready: ready_word;                    -- the word R
    ack: array [rank] of generation;      -- the words A
    table: array [rank] of generation;    -- the newest generation that each rank has used
  end;
  unit_state: record
    taken: boolean;
    used: boolean;
    bytes: array [half] of 0 .. LEASES;   -- whose bytes; 0: nobody's
  end;
  reader_state: record
    at: stage;
    place: 0 .. LEASES * COPIES;          -- in its rank's stream; 1 is the oldest, 0 is not there
    copied: 0 .. HALVES;
    foreign: boolean;                     -- it has copied bytes that are not its lease's own
  end;
  lease_state: record
    is: phase;
    at: slot;
    in_unit: unit;
    number: generation;
    stored: 0 .. HALVES + 1;              -- pieces of copy and ready store that are done
    sent: boolean;                        -- its proxies have left
    excused: boolean;                     -- somebody has taken it back: its readers may find it stale
    readers: array [rank] of array [copy] of reader_state;
  end;

var
  slots: array [slot] of slot_state;
  units: array [unit] of unit_state;
  leases: array [lease] of lease_state;
  revokes: 0 .. REVOKES;
  cancels: 0 .. CANCELS;
  producer_deaths: 0 .. PRODUCER_DEATHS;
  alive: boolean;         -- the producer's process
  reader_failures: 0 .. READER_FAILURES;

-- Whether a rank gets this copy of each proxy: the second one only where it uses both.
function gets(r: rank; c: copy): boolean;
begin
  return c = 1 | r < 1;
end;

-- A slot or range is taken when it is free; of those that were never used the lowest, for they are alike.
function slot_may_be_taken(s: slot): boolean;
begin
  return !slots[s].taken &
    (slots[s].issued > 0 | forall other: slot do other < s -> slots[other].issued > 0 end);
end;

function unit_may_be_taken(u: unit): boolean;
begin
  return !units[u].taken & (units[u].used | forall other: unit do other < u -> units[other].used end);
end;

function may_be_published(l: lease): boolean;
begin
  return leases[l].is = unpublished & (forall other: lease do other < l -> leases[other].is != unpublished end);
end;

function all_stored(l: lease): boolean;
begin
  return leases[l].stored = HALVES + 1;
end;

function acknowledged_by_all(l: lease): boolean;
begin
  return forall r: rank do slots[leases[l].at].ack[r] = leases[l].number end;
end;

function has_finished(l: lease; r: rank): boolean;
begin
  return exists c: copy do leases[l].readers[r][c].at = finished end;
end;

procedure leave(l: lease; r: rank; c: copy; fate: stage);
begin
  for other: lease do
    for another: copy do
      if leases[other].readers[r][another].place > 0 then
        leases[other].readers[r][another].place := leases[other].readers[r][another].place - 1;
      end;
    end;
  end;
  leases[l].readers[r][c].at := fate;
  leases[l].readers[r][c].copied := 0;
  leases[l].readers[r][c].foreign := false;
end;

function queue_length(r: rank): 0 .. LEASES * COPIES;
var length: 0 .. LEASES * COPIES;
begin
  length := 0;
  for l: lease do
    for c: copy do
      if leases[l].readers[r][c].place > 0 then length := length + 1; end;
    end;
  end;
  return length;
end;

startstate
begin
  clear slots;
  clear units;
  clear leases;
  revokes := REVOKES;
  cancels := CANCELS;
  producer_deaths := PRODUCER_DEATHS;
  alive := true;
  reader_failures := READER_FAILURES;
end;

-- The producer's host and the streams of its leases.

ruleset l: lease; s: slot; u: unit do
  rule "publish" alive & may_be_published(l) & slot_may_be_taken(s) & unit_may_be_taken(u) ==>
  begin
    slots[s].taken := true;
    slots[s].issued := slots[s].issued + 1;                      -- GEN-1
    units[u].taken := true;
    units[u].used := true;
    leases[l].is := live;
    leases[l].at := s;
    leases[l].in_unit := u;
    leases[l].number := slots[s].issued;
  end;
end;

ruleset l: lease do
  alias mine: leases[l] do
    rule "copy" alive & mine.is != unpublished & mine.stored < HALVES ==>
    begin
      units[mine.in_unit].bytes[mine.stored] := l;
      mine.stored := mine.stored + 1;
    end;

    rule "ready store" alive & mine.is != unpublished & mine.stored = HALVES ==>
    begin
      assert "CTL-6" slots[mine.at].ready < 2 * mine.number;
      slots[mine.at].ready := 2 * mine.number;
      mine.stored := HALVES + 1;
    end;

    rule "dispatch" alive & mine.is = live & (all_stored(l) | DEVICE_WAIT = 1) & !mine.sent ==>        -- PUB-2
    begin
      mine.sent := true;
    end;

    rule "look" alive & mine.is = live & mine.sent & acknowledged_by_all(l) ==>
    begin
      mine.is := looked;
    end;

    rule "claim" alive & mine.is = looked ==>                                      -- REC-3
    begin
      mine.is := claimed;
    end;

    rule "queue the retire store" alive & mine.is = claimed ==>
    begin
      mine.is := queued;
    end;

    rule "retire store" alive & mine.is = queued & all_stored(l) ==>               -- REC-2
    begin
      assert "CTL-6" slots[mine.at].ready < 2 * mine.number + 1;
      slots[mine.at].ready := 2 * mine.number + 1;
      mine.is := retired;
    end;

    rule "free" alive & mine.is = retired & all_stored(l) ==>                      -- PUB-3
    begin
      assert "REC-1" mine.excused | (forall r: rank do has_finished(l, r) end);
      assert "REC-5" slots[mine.at].taken & units[mine.in_unit].taken;
      slots[mine.at].taken := false;
      units[mine.in_unit].taken := false;
      mine.is := freed;
    end;
  end;
end;

-- The consumer ranks: a copy of a proxy is used, and the oldest reader of each stream runs.

ruleset l: lease; r: rank; c: copy do
  alias mine: leases[l]; reader: leases[l].readers[r][c]; home: slots[leases[l].at] do
    rule "refused by the table" gets(r, c) & mine.sent & reader.at = idle & mine.number <= home.table[r] ==>  -- CON-3
    begin
      reader.at := over;
    end;

    rule "begin" gets(r, c) & mine.sent & reader.at = idle & mine.number > home.table[r] ==>
    begin
      home.table[r] := mine.number;
      reader.place := queue_length(r) + 1;
      reader.at := copying;
    end;

    rule "copy out" reader.place = 1 & reader.at = copying &
      (DEVICE_WAIT = 0 | reader.copied > 0 | home.ready >= 2 * mine.number) ==>
    begin
      reader.foreign := reader.foreign | units[mine.in_unit].bytes[reader.copied] != l;
      reader.copied := reader.copied + 1;
      if reader.copied = HALVES then reader.at := checking; end;
    end;

    rule "R is right" reader.place = 1 & reader.at = checking & home.ready = 2 * mine.number ==>
    begin
      assert "CON-1" !reader.foreign;
      reader.at := acknowledging;
    end;

    rule "stale" reader.place = 1 & reader.at = checking & home.ready != 2 * mine.number ==>                 -- CON-5
    begin
      assert "CON-5" mine.excused | has_finished(l, r);
      leave(l, r, c, over);
    end;

    rule "acknowledge" reader.place = 1 & (reader.at = acknowledging | reader.at = acknowledging_failure) ==>
    begin
      if home.ack[r] < mine.number then home.ack[r] := mine.number; end;                                     -- ACK-2
      leave(l, r, c, finished);
    end;

    -- What may go wrong.

    rule "its work fails" reader_failures > 0 & reader.place = 1 & (reader.at = copying | reader.at = checking) ==>
    begin
      reader_failures := reader_failures - 1;
      if FAILED_ACKNOWLEDGES = 1 then                                                                        -- CON-4
        reader.at := acknowledging_failure;
        reader.copied := 0;
        reader.foreign := false;
      else
        leave(l, r, c, over);
      end;
    end;
  end;
end;

ruleset l: lease do
  alias mine: leases[l] do
    rule "revoke" alive & revokes > 0 & mine.sent & (mine.is = live | mine.is = looked) ==>
    begin
      revokes := revokes - 1;
      mine.is := claimed;
      mine.excused := true;
    end;

    rule "cancel" alive & cancels > 0 & !mine.sent & mine.is = live ==>
    begin
      cancels := cancels - 1;
      mine.is := claimed;
      mine.excused := true;
    end;
  end;
end;

rule "the producer dies" alive & producer_deaths > 0 ==>
begin
  producer_deaths := producer_deaths - 1;
  alive := false;
end;

-- Where ends are judged: a good end may go on for ever, any other state without a rule is a deadlock.
rule "everything is over" ENDS_ARE_JUDGED = 1 & (forall r: rank do queue_length(r) = 0 end) &
  (!alive | forall l: lease do leases[l].is = unpublished | leases[l].is = freed end) ==>
begin
end;
